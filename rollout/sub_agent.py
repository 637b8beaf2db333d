"""A sub-agent as a tool: the policy asks itself, in a conversation of its own.

With a section `[rollout.sub_agent]`, every environment of a run has one tool more:

    > ask(in which year was gallium discovered?)     1875

The sub-agent has the same weights and knows the question alone. It may call the tools that the
configuration names, in the same environment; what it writes without a call is the reply to `ask`.
Its tokens stand in a segment of their own, by an author of their own: `trains` decides whether
they get the episode's credit or are masked. What it reads costs the asker's context nothing.
"""

import time
from collections.abc import Sequence

from envs.config import EnvironmentConfig
from envs.environment import is_done
from envs.messages import Message, Role, ToolParameter, ToolSpec
from envs.tools import call_tool, tool_specs
from rollout.config import RolloutConfig, SubAgentConfig
from rollout.conversation import Conversation, Player
from rollout.input_error import InputError
from rollout.tool_parser import ParseFailure
from rollout.trajectory import Source

ASK = ToolSpec(
    name="ask",
    description="Ask a helper who knows nothing but the question; it answers in words.",
    parameters=(ToolParameter(name="question", type="string", description="All it has to know."),),
)


def offered_tools(environment: object, config: RolloutConfig) -> tuple[ToolSpec, ...]:
    """List what the policy may call in an environment: its tools, and `ask` where there is one.

    Args:
        environment: The class, or an instance of it.
        config: Its `sub_agent` adds the tool.

    Raises:
        InputError: the environment has a tool of that name.
        ValueError: a tool cannot be described.
    """
    tools = tool_specs(environment)
    if config.sub_agent is None:
        return tools
    if any(tool.name == ASK.name for tool in tools):
        kind = environment if isinstance(environment, type) else type(environment)
        raise InputError(
            f"{kind.__name__} has a tool 'ask', and rollout.sub_agent brings one: rename the "
            "first, or leave out the section"
        )
    return (*tools, ASK)


class SubAgents:
    """The conversations that the policy of one episode has with itself."""

    def __init__(
        self, player: Player, config: SubAgentConfig, environment: object, limits: EnvironmentConfig
    ) -> None:
        """Prepare for questions.

        Args:
            player: Speaks; what sub-agents write comes out of its budget.
            config: How long they may take, their tools, and whether they train.
            environment: Whose tools they call.
            limits: Of a tool call.
        """
        self.conversations: list[Conversation] = []
        """All that were begun, in order; each is closed."""
        self.is_aborted = False
        """Whether the engine gave one up in the middle of a message."""
        self._player = player
        self._config = config
        self._environment = environment
        self._limits = limits
        self._tools = [tool for tool in tool_specs(environment) if tool.name in config.tools]

    async def ask(self, question: str) -> str:
        """Put a question to a new sub-agent.

        Returns:
            Its answer, or a line that begins with `error:` where a budget ended before it came.

        Raises:
            EnvironmentFailure: a tool broke.
            EngineError: the engine failed.
        """
        author = Source.SUB_AGENT if self._config.trains else Source.MASKED_SUB_AGENT
        index = len(self.conversations) + 1
        conversation = Conversation(self._player, segment=index, author=author)
        self.conversations.append(conversation)
        try:
            await conversation.begin(question, self._tools, takes_text=True)
            return await self._converse(conversation)
        finally:
            await conversation.close()

    async def _converse(self, conversation: Conversation) -> str:
        for turn in range(self._config.max_turns):
            started = time.perf_counter()
            room = conversation.room()
            if room < 1:
                return "error: the helper has no tokens left"
            finish, action = await conversation.sample(turn, room)
            self.is_aborted |= finish == "abort"
            if isinstance(action, Message) and not action.tool_calls:
                return action.text
            if isinstance(action, ParseFailure) and not action.kind.is_answerable:
                return f"error: the helper gave no answer: {action.reason}"
            replies = await self._reply(action)
            conversation.append_replies(replies, time.perf_counter() - started)
            if await is_done(self._environment):
                return "the helper ended the episode"
        return f"error: the helper gave no answer in {self._config.max_turns} turns"

    async def _reply(self, action: Message | ParseFailure) -> Sequence[Message]:
        if isinstance(action, ParseFailure):
            return [Message(role=Role.TOOL, text=action.reason, tool_name=action.tool_name)]
        limits = self._limits
        return [
            Message(
                role=Role.TOOL,
                text=await call_tool(
                    self._environment, call, limits.tool_timeout_seconds, limits.max_tool_characters
                ),
                tool_name=call.name,
            )
            for call in action.tool_calls
        ]
