"""The `environments` section: which environments a run trains on, and how much of each."""

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class EnvironmentConfig(BaseModel):
    """One environment of a run; its key in the file is the name it goes by in the metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    use: str = ""
    """Registered name, or dotted path to a spec or a class, `my_env:MyEnv`; empty: the section's
    own key."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the training groups, relative to the other environments."""
    tasks: str = ""
    """Tasks, where they are not the environment's own: a JSONL, JSON or Parquet file, a folder of a
    Hugging Face dataset, or a dotted path `package.module:TASKS` to an iterable of rows."""
    options: dict[str, JsonValue] = {}
    """Passed by name to the environment's task set."""
    tool_timeout_seconds: float = Field(default=10.0, gt=0)
    """A tool that takes longer ends with an error message to the policy."""
    max_tool_characters: int = Field(default=2000, gt=0)
    """A longer tool reply is cut, and says so."""
