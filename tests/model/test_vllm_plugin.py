import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from model.presets import tiny
from model.vllm_plugin.cache_shape import kda_spans
from model.vllm_plugin.recording import CONVERSATION, Recorder


def test_neighbouring_kda_layers_share_a_page():
    assert kda_spans(tiny()) == [[0, 1, 2]]
    deeper = replace(tiny(), num_hidden_layers=8, full_attn_layers=(4, 7, 8))
    assert kda_spans(deeper) == [[0, 1, 2], [4, 5]]


def experts(*rows):
    return np.array(rows, dtype=np.int16).reshape(-1, 1, 1)


def record(recorder, name, first, rows):
    positions = np.arange(first, first + len(rows))
    recorder.record([f"{CONVERSATION}{name}-0a1b2c3d"], [0, len(rows)], positions, experts(*rows))


def test_a_conversation_is_recorded_in_order_whatever_shares_its_batches():
    recorder = Recorder()
    requests = [f"{CONVERSATION}a-11111111", "score/x-22222222", f"{CONVERSATION}b-c-33333333"]
    positions = np.array([0, 1, 5, 0])
    recorder.record(requests, [0, 2, 3, 4], positions, experts(10, 11, 99, 20))
    recorder.record(requests[::2], [0, 1, 2], np.array([2, 1]), experts(12, 21))
    taken = recorder.take(f"{CONVERSATION}a")
    assert taken.expert_ids.ravel().tolist() == [10, 11, 12]
    assert taken.computed_tokens == 3
    assert recorder.take(f"{CONVERSATION}b-c").expert_ids.ravel().tolist() == [20, 21]
    assert recorder.take(f"{CONVERSATION}a") is None


def test_a_preempted_conversation_costs_more_but_keeps_its_first_routing():
    recorder = Recorder()
    record(recorder, "a", 0, [1, 2, 3])
    record(recorder, "a", 0, [7, 7])
    record(recorder, "a", 2, [7, 4, 5])
    taken = recorder.take(f"{CONVERSATION}a")
    assert taken.expert_ids.ravel().tolist() == [1, 2, 3, 4, 5]
    assert taken.computed_tokens == 8
    assert taken.publish_recomputed_tokens == 0


def test_what_a_publish_recomputes_is_counted_apart():
    recorder = Recorder()
    record(recorder, "a", 0, [1, 2, 3])
    recorder.expect_recomputation()
    record(recorder, "a", 0, [7, 7])
    record(recorder, "a", 2, [7, 4])
    record(recorder, "a", 0, [7])
    taken = recorder.take(f"{CONVERSATION}a")
    assert taken.publish_recomputed_tokens == 3
    assert taken.computed_tokens == 3 + 1 + 1, "the last one was no publish's doing"


def test_a_gap_in_a_conversation_is_not_passed_over():
    recorder = Recorder()
    record(recorder, "a", 0, [1])
    with pytest.raises(AssertionError, match="skipped"):
        record(recorder, "a", 2, [3])


def test_importing_the_plugin_imports_nothing_heavy():
    script = (
        "import sys, model.vllm_plugin;"
        "heavy = {'torch', 'vllm', 'transformers', 'numba'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
