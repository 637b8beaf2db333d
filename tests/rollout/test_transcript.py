from dataclasses import replace

import numpy as np
import pytest

from rollout.engine import Generation
from rollout.renderer import Piece
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import NO_EXPERT, Source
from rollout.transcript import Transcript


def generation(token_ids, versions, logprobs=None):
    size = len(token_ids)
    return Generation(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.array(logprobs or [-1.0] * size, dtype=np.float32),
        versions=np.array(versions, dtype=np.int32),
        finish="stop",
        prompt_version=0,
    )


def test_what_sampling_left_in_the_running_stands_at_the_tokens_it_belongs_to():
    transcript = Transcript()
    transcript.append_pieces([piece(1, 2)], turn=0, policy_version=0)
    cut = replace(generation([5, 6], [0, 0]), sampling_mask=SamplingMask.of_lists([[5, 9], [6]]))
    transcript.append_generation(cut, turn=0)
    transcript.append_pieces([piece(3)], turn=1, policy_version=0)
    transcript.append_generation(generation([7], [0]), turn=1)
    mask = transcript.to_segment().sampling_mask
    assert mask is not None
    assert mask.lengths.tolist() == [0, 0, 2, 1, 0, 0]
    assert mask.token_ids.tolist() == [5, 9, 6]


def test_where_nothing_was_left_out_no_mask_is_kept():
    transcript = Transcript()
    transcript.append_generation(generation([5, 6], [0, 0]), turn=0)
    assert transcript.to_segment().sampling_mask is None


def piece(*token_ids, source=Source.TEMPLATE):
    return Piece(token_ids=token_ids, source=source)


def test_a_turn_that_a_publish_splits_has_a_span_per_version():
    transcript = Transcript()
    transcript.append_pieces([piece(1, 2)], turn=0, policy_version=3)
    span = transcript.append_generation(generation([5, 6, 7, 8], [3, 3, 4, 4]), turn=0)
    segment = transcript.to_segment()
    assert [(s.start, s.stop, s.policy_version) for s in segment.spans] == [
        (0, 2, 3),
        (2, 4, 3),
        (4, 6, 4),
    ]
    assert span is not None
    assert (span.start, span.stop, span.policy_version) == (2, 6, 3)
    assert segment.single_version_length == 4


def test_neighbouring_pieces_of_one_writer_become_one_span():
    transcript = Transcript()
    transcript.append_pieces([piece(1), piece(2, 3)], turn=0, policy_version=0)
    transcript.append_pieces([piece(4)], turn=1, policy_version=0)
    assert [(s.start, s.stop) for s in transcript.to_segment().spans] == [(0, 3), (3, 4)]


def test_nothing_sampled_is_no_span():
    transcript = Transcript()
    transcript.append_pieces([piece(1)], turn=0, policy_version=0)
    assert transcript.append_generation(generation([], []), turn=0) is None
    assert len(transcript.to_segment().spans) == 1


def test_a_logprob_that_rounds_above_zero_is_zero():
    transcript = Transcript()
    transcript.append_generation(generation([1], [0], [1e-7]), turn=0)
    assert transcript.to_segment().behavior_logprobs.tolist() == [0.0]


@pytest.mark.parametrize("num_computed", [0, 2, 3, 4])
def test_the_last_token_and_those_never_computed_have_no_expert(num_computed):
    transcript = Transcript()
    transcript.append_pieces([piece(1, 2)], turn=0, policy_version=0)
    transcript.append_generation(generation([3, 4], [0, 0]), turn=0)
    segment = transcript.to_segment(np.ones((num_computed, 1, 2), dtype=np.int16))
    expected = [1] * min(num_computed, 3) + [NO_EXPERT] * (4 - min(num_computed, 3))
    assert segment.expert_ids is not None
    assert segment.expert_ids[:, 0, 0].tolist() == expected
