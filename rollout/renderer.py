"""Messages to tokens, append-only: a conversation's earlier tokens never change.

Takes the tools, the opening and each message; returns pieces, token ids with their writer. One
episode with two tools, `~` marking what the policy samples:

    <|tools|> search(query); open(hit) <|end|> <|user|> opening <|end|> <|policy|>
    ~ <|call|> search <|arg|> gallium <|end|>
    <|tool|> 1 gallium: history <|end|> <|policy|>
    ~ <|call|> open <|arg|> 1 <|end|>
    ...

Every text between two markers is encoded alone, so what follows can never change how it is split.
Demonstrations for the warm start go through the same functions as live episodes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32

from envs.episode import Episode
from envs.messages import JsonValue, Message, Role, ToolCall, ToolSpec
from rollout.tokenizer import Tokenizer
from rollout.trajectory import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive tokens of one writer."""

    token_ids: tuple[int, ...]
    source: Source


class Renderer:
    """Renders the conversations of one environment.

    Worked example:

        renderer = Renderer(tokenizer, tools)
        context = renderer.render_opening("gallium: in which year was it discovered?")
        context += renderer.render_action(action) + renderer.render_replies([reply])
    """

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        """Render for an environment with these tools, in their order."""
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}

    def render_opening(self, text: str) -> list[Piece]:
        """Render the tools and the task's opening, up to the point where the policy speaks."""
        tokenizer = self._tokenizer
        head: tuple[int, ...] = ()
        if self._tools:
            tools = tokenizer.encode(describe_tools(self._tools.values()))
            head = (tokenizer.tools_id, *tools, tokenizer.end_id)
        pieces = [
            Piece(token_ids=(*head, tokenizer.user_id), source=Source.TEMPLATE),
            Piece(token_ids=tuple(tokenizer.encode(text)), source=Source.PROMPT),
            Piece(token_ids=(tokenizer.end_id, tokenizer.policy_id), source=Source.TEMPLATE),
        ]
        return [piece for piece in pieces if piece.token_ids]

    def render_replies(self, replies: Sequence[Message]) -> list[Piece]:
        """Render the tools' replies to one policy message, and hand the word to the policy."""
        tokenizer = self._tokenizer
        pieces: list[Piece] = []
        for reply in replies:
            pieces += [
                Piece(token_ids=(tokenizer.tool_id,), source=Source.TEMPLATE),
                Piece(token_ids=tuple(tokenizer.encode(reply.text)), source=Source.TOOL),
                Piece(token_ids=(tokenizer.end_id,), source=Source.TEMPLATE),
            ]
        pieces.append(Piece(token_ids=(tokenizer.policy_id,), source=Source.TEMPLATE))
        return [piece for piece in pieces if piece.token_ids]

    def render_action(self, action: Message) -> list[Piece]:
        """Render a policy message as the policy would have sampled it, its `<|end|>` included.

        Live episodes never call this: there the sampled tokens themselves are kept.

        Raises:
            ValueError: a call of an unknown tool, or arguments that are not a prefix of its
                parameters.
        """
        tokenizer = self._tokenizer
        token_ids = tokenizer.encode(action.text)
        for call in action.tool_calls:
            token_ids += [tokenizer.call_id, *tokenizer.encode(call.name)]
            for argument in self._positional(call):
                token_ids += [tokenizer.arg_id, *tokenizer.encode(argument)]
        return [Piece(token_ids=(*token_ids, tokenizer.end_id), source=Source.POLICY)]

    def _positional(self, call: ToolCall) -> list[str]:
        """Spell out a call's arguments in the order of the tool's parameters."""
        if call.name not in self._tools:
            raise ValueError(f"{call.name!r} is no tool of this environment: {list(self._tools)}")
        names = [parameter.name for parameter in self._tools[call.name].parameters]
        given = names[: len(call.arguments)]
        if set(given) != set(call.arguments):
            raise ValueError(f"{call.name}: arguments {list(call.arguments)} do not fit {names}")
        return [spell_argument(call.arguments[name]) for name in given]


def describe_tools(tools: Iterable[ToolSpec]) -> str:
    """Describe tools in one line, as the policy reads them: `search(query); open(hit)`."""
    return "; ".join(
        f"{tool.name}({', '.join(parameter.name for parameter in tool.parameters)})"
        for tool in tools
    )


def spell_argument(value: JsonValue) -> str:
    """Spell out an argument as a policy writes it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def demonstration_pieces(
    tokenizer: Tokenizer, tools: Sequence[ToolSpec], episode: Episode
) -> list[Piece]:
    """Render a finished episode, up to the last policy message.

    Args:
        tokenizer: The tokenizer of the policy.
        tools: The environment's tools.
        episode: As `envs.play` makes it: an opening, then policy messages and tool replies.

    Raises:
        ValueError: the episode does not begin with its opening, or has a call that no tool fits.
    """
    if not episode.messages or episode.messages[0].role is not Role.USER:
        raise ValueError(f"episode of {episode.task.id!r} does not begin with its opening")
    renderer = Renderer(tokenizer, tools)
    pieces = renderer.render_opening(episode.messages[0].text)
    replies: list[Message] = []
    for message in episode.messages[1:]:
        if message.role is Role.TOOL:
            replies.append(message)
        elif message.role is Role.POLICY:
            if pieces[-1].source is Source.POLICY:
                pieces += renderer.render_replies(replies)
                replies = []
            pieces += renderer.render_action(message)
        else:
            raise ValueError(f"episode of {episode.task.id!r} has a second opening")
    return pieces


def demonstration_tokens(
    tokenizer: Tokenizer, tools: Sequence[ToolSpec], episode: Episode
) -> tuple[Int32[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Render a finished episode for supervised training.

    Args:
        tokenizer: The tokenizer of the policy.
        tools: The environment's tools.
        episode: As `envs.play` makes it.

    Returns:
        Token ids, and the loss mask: True where the policy wrote the token (labels are the token
        ids there and -100 elsewhere).
    """
    pieces = demonstration_pieces(tokenizer, tools, episode)
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    mask = [piece.source is Source.POLICY for piece in pieces for _ in piece.token_ids]
    return np.array(token_ids, dtype=np.int32), np.array(mask, dtype=bool)


def demonstration_texts(tools: Sequence[ToolSpec], episode: Episode) -> Iterator[str]:
    """Yield each text that rendering an episode encodes: what a tokenizer is trained on."""
    yield describe_tools(tools)
    for message in episode.messages:
        if message.text:
            yield message.text
        for call in message.tool_calls:
            yield call.name
            yield from map(spell_argument, call.arguments.values())


def count_opening_tokens(tokenizer: Tokenizer, tools: Sequence[ToolSpec], text: str) -> int:
    """Count the tokens that an episode begins with, before the policy's first."""
    return sum(len(piece.token_ids) for piece in Renderer(tokenizer, tools).render_opening(text))
