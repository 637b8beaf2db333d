import io

from rich.console import Console

from rl.progress import LiveProgress, PlainProgress, open_progress

METRICS = {
    "rewards/pass_rate/retrieval": 0.25,
    "rewards/pass_rate/code_tests": None,
    "rollout/tokens_per_second": 1234.5,
    "rollout/lag_mean": 1.0,
    "rl/logprob_gap_mean": 3e-6,
    "time/step_seconds": 10.0,
}


def test_a_pipe_gets_plain_lines():
    stream = io.StringIO()
    progress = open_progress(stream)
    assert isinstance(progress, PlainProgress)
    with progress:
        progress.stage("starting the engine")
        progress.evaluation(0, {"rewards/held_out_pass_at_1/retrieval": 0.5})
        progress.step(1, 4, METRICS)
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("starting the engine")
    assert lines[1].endswith("held-out pass@1 after 0 updates: retrieval 0.500")
    for part in ("step 1/4", "retrieval 0.25", "code_tests -", "tokens/s 1234", "gap 3.0e-06"):
        assert part in lines[2]
    assert "left 0:30" in lines[2]


def test_a_counted_stage_does_not_flood_a_pipe():
    stream = io.StringIO()
    progress = PlainProgress(stream)
    for done in range(1, 1001):
        progress.count("playing", done, 1000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[-1].endswith("playing: 1000 of 1000")


def test_a_terminal_gets_a_table_that_grows():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with LiveProgress(console) as progress:
        progress.stage("collecting")
        progress.step(1, 4, METRICS)
        progress.step(2, 4, METRICS)
        progress.evaluation(2, {"rewards/held_out_pass_at_1/retrieval": 0.5})
    text = stream.getvalue()
    for part in ("tokens/s", "1/4", "2/4", "collecting", "held-out pass@1 after 2 updates"):
        assert part in text
