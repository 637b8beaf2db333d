"""Groups on disk: an append-only file of JSON lines that reads back to identical objects.

Takes groups, one line each: text, spans, outcomes and numbers as JSON, arrays as zlib-compressed
base64 with their type and shape. A line is written whole or not at all; one that a crash tore is
reported and skipped, and what is before and after it stays readable.
"""

import base64
import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from envs.episode import Episode, StopReason
from envs.messages import Message, Role, ToolCall
from envs.task import Task
from rewards.reward import Blame, Invalid, Outcome, Scored
from rollout.sampling_mask import SamplingMask
from rollout.trajectory import Group, Segment, Source, TokenSpan, Trajectory, Turn

SCHEMA_VERSION = 1
"""Version of the lines; a reader refuses lines of another one."""

_log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One JSON object."""


class StoreError(ValueError):
    """A file that holds no groups of this schema: one clear line."""


def append_group(path: Path, group: Group) -> None:
    """Append a group to a file and hand it to the disk before returning.

    A torn line at the end of the file, left by a crash, is closed first so that it cannot swallow
    this one.
    """
    line = json.dumps(_group_to_record(group), separators=(",", ":")) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if is_torn else b"") + line.encode("ascii")
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_groups(path: Path) -> list[Group]:
    """Read all groups of a file, in order; torn lines are reported to the log and skipped.

    Raises:
        StoreError: no such file, or a whole line that is no group of this schema.
    """
    return list(iterate_groups(path))


def iterate_groups(path: Path) -> Iterator[Group]:
    """Read the groups of a file one by one; see `read_groups`."""
    if not path.is_file():
        raise StoreError(f"{path}: no such file")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                _log.warning("%s:%d: torn line skipped", path, number)
                continue
            if not isinstance(record, dict) or record.get("schema") != SCHEMA_VERSION:
                found = record.get("schema") if isinstance(record, dict) else None
                raise StoreError(
                    f"{path}:{number}: schema {found!r}, this version reads {SCHEMA_VERSION}"
                )
            try:
                group = _group_from_record(record)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                raise StoreError(f"{path}:{number}: damaged group: {error!r}") from error
            yield group


def _group_to_record(group: Group) -> Record:
    return {
        "schema": SCHEMA_VERSION,
        "id": group.id,
        "task": _task_to_record(group.task),
        "trajectories": [_trajectory_to_record(member) for member in group.trajectories],
    }


def _group_from_record(record: Record) -> Group:
    task = Task(**record["task"])
    trajectories = tuple(_trajectory_from_record(member, task) for member in record["trajectories"])
    return Group(id=record["id"], task=task, trajectories=trajectories)


def _task_to_record(task: Task) -> Record:
    return {
        "id": task.id,
        "environment": task.environment,
        "grader": task.grader,
        "data": dict(task.data),
        "reference": dict(task.reference),
        "seed": task.seed,
    }


def _trajectory_to_record(trajectory: Trajectory) -> Record:
    episode = trajectory.episode
    return {
        "id": trajectory.id,
        "messages": [_message_to_record(message) for message in episode.messages],
        "stop": episode.stop,
        "artifacts": dict(episode.artifacts),
        "error": episode.error,
        "outcome": _outcome_to_record(trajectory.outcome),
        "turns": [_turn_to_record(turn) for turn in trajectory.turns],
        "segments": [_segment_to_record(segment) for segment in trajectory.segments],
        "computed_tokens": trajectory.computed_tokens,
        "publish_recomputed_tokens": trajectory.publish_recomputed_tokens,
    }


def _trajectory_from_record(record: Record, task: Task) -> Trajectory:
    episode = Episode(
        task=task,
        messages=tuple(_message_from_record(message) for message in record["messages"]),
        stop=StopReason(record["stop"]),
        artifacts=record["artifacts"],
        error=record["error"],
    )
    return Trajectory(
        id=record["id"],
        episode=episode,
        segments=tuple(_segment_from_record(segment) for segment in record["segments"]),
        turns=tuple(_turn_from_record(turn) for turn in record["turns"]),
        outcome=_outcome_from_record(record["outcome"]),
        computed_tokens=record["computed_tokens"],
        publish_recomputed_tokens=record["publish_recomputed_tokens"],
    )


def _turn_to_record(turn: Turn) -> Record:
    return {
        "index": turn.index,
        "action": _message_to_record(turn.action),
        "span": _span_to_record(turn.span),
        "segment": turn.segment,
        "finish": turn.finish,
        "seconds": turn.seconds,
    }


def _turn_from_record(record: Record) -> Turn:
    action, span = _message_from_record(record["action"]), _span_from_record(record["span"])
    return Turn(**{**record, "action": action, "span": span})


def _message_to_record(message: Message) -> Record:
    record: Record = {"role": message.role, "text": message.text}
    if message.tool_calls:
        record["tool_calls"] = [
            {"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls
        ]
    if message.tool_name is not None:
        record["tool_name"] = message.tool_name
    return record


def _message_from_record(record: Mapping[str, Any]) -> Message:
    return Message(
        role=Role(record["role"]),
        text=record["text"],
        tool_calls=tuple(ToolCall(**call) for call in record.get("tool_calls", ())),
        tool_name=record.get("tool_name"),
    )


def _outcome_to_record(outcome: Outcome) -> Record:
    if isinstance(outcome, Scored):
        record: Record = {"value": outcome.value, "parts": dict(outcome.parts)}
        return record | ({"turns": list(outcome.turns)} if outcome.turns else {})
    return {"reason": outcome.reason, "blame": outcome.blame, "detail": outcome.detail}


def _outcome_from_record(record: Record) -> Outcome:
    if "value" in record:
        return Scored(**{**record, "turns": tuple(record.get("turns", ()))})
    return Invalid(**{**record, "blame": Blame(record["blame"])})


def _segment_to_record(segment: Segment) -> Record:
    mask = segment.sampling_mask
    return {
        "token_ids": _array_to_record(segment.token_ids),
        "spans": [_span_to_record(span) for span in segment.spans],
        "behavior_logprobs": _array_to_record(segment.behavior_logprobs),
        "expert_ids": None if segment.expert_ids is None else _array_to_record(segment.expert_ids),
    } | ({} if mask is None else {"sampling_mask": _mask_to_record(mask)})


def _segment_from_record(record: Record) -> Segment:
    experts, mask = record["expert_ids"], record.get("sampling_mask")
    return Segment(
        token_ids=_array_from_record(record["token_ids"]),
        spans=tuple(_span_from_record(span) for span in record["spans"]),
        behavior_logprobs=_array_from_record(record["behavior_logprobs"]),
        expert_ids=None if experts is None else _array_from_record(experts),
        sampling_mask=None if mask is None else _mask_from_record(mask),
    )


def _mask_to_record(mask: SamplingMask) -> Record:
    return {
        "token_ids": _array_to_record(mask.token_ids),
        "lengths": _array_to_record(mask.lengths),
    }


def _mask_from_record(record: Record) -> SamplingMask:
    arrays = {name: _array_from_record(record[name]) for name in ("token_ids", "lengths")}
    return SamplingMask(**arrays)


def _span_to_record(span: TokenSpan) -> list[Any]:
    return [span.start, span.stop, span.source, span.turn, span.policy_version]


def _span_from_record(record: list[Any]) -> TokenSpan:
    start, stop, source, turn, policy_version = record
    return TokenSpan(
        start=start, stop=stop, source=Source(source), turn=turn, policy_version=policy_version
    )


def _array_to_record(array: np.ndarray) -> Record:
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(zlib.compress(little_endian.tobytes(), level=1))
    return {
        "dtype": little_endian.dtype.str,
        "shape": list(array.shape),
        "data": data.decode("ascii"),
    }


def _array_from_record(record: Record) -> np.ndarray:
    data = zlib.decompress(base64.b64decode(record["data"]))
    array = np.frombuffer(data, dtype=np.dtype(record["dtype"])).reshape(record["shape"])
    return array.astype(array.dtype.newbyteorder("="))
