"""Text to token ids and back: a small byte-level BPE with eight special tokens.

Built on the `tokenizers` library alone, so that looking at a trajectory needs neither torch nor
transformers. The same `tokenizer.json` loads in transformers as a fast tokenizer.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

PAD = "<|pad|>"
TOOLS = "<|tools|>"
USER = "<|user|>"
POLICY = "<|policy|>"
TOOL = "<|tool|>"
CALL = "<|call|>"
ARG = "<|arg|>"
END = "<|end|>"
SPECIAL_TOKENS = (PAD, TOOLS, USER, POLICY, TOOL, CALL, ARG, END)
"""In the order of their ids, from 0. Only the renderer and the policy write them."""

FILE_NAME = "tokenizer.json"
ALONE = r" ?[0-9(),:;.?\[\]\n]"
"""Characters that are never merged with a neighbour but the space before them: a digit is a digit
wherever it stands, so that a number is copied digit by digit. Everything between two of them is
one chunk: several words may become one token, which keeps episodes short."""


class Tokenizer:
    """Byte-level BPE: every text has an encoding, and decoding it gives the text back.

    A space is put before the text and taken away again by `decode`, so that a word has the same
    token at the start of a text as inside one. Special tokens spelled out in a text are ordinary
    characters: neither a task nor a tool can forge a role marker.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a trained tokenizer.

        Args:
            backend: As `train` makes it; its special tokens are checked.

        Raises:
            ValueError: a special token is missing.
        """
        special_ids: dict[str, int] = {}
        for token in SPECIAL_TOKENS:
            token_id = backend.token_to_id(token)
            if token_id is None:
                raise ValueError(f"the tokenizer has no special token {token}")
            special_ids[token] = token_id
        backend.encode_special_tokens = True
        self._backend = backend
        self.pad_id: int = special_ids[PAD]
        self.tools_id: int = special_ids[TOOLS]
        self.user_id: int = special_ids[USER]
        self.policy_id: int = special_ids[POLICY]
        self.tool_id: int = special_ids[TOOL]
        self.call_id: int = special_ids[CALL]
        self.arg_id: int = special_ids[ARG]
        self.end_id: int = special_ids[END]
        self.special_ids: frozenset[int] = frozenset(special_ids.values())

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary_size: int) -> "Tokenizer":
        """Learn merges from texts.

        Args:
            texts: Texts as they will be encoded (`renderer.demonstration_texts`).
            vocabulary_size: Tokens in all: 8 special ones, 256 bytes, and merges. Few or short
                texts may give fewer.

        Returns:
            The tokenizer; the same texts give the same one.

        Raises:
            ValueError: the vocabulary cannot hold the special tokens and the bytes.
        """
        smallest = len(SPECIAL_TOKENS) + 256
        if vocabulary_size < smallest:
            raise ValueError(f"a vocabulary of {vocabulary_size} tokens is below {smallest}")
        backend = tokenizers.Tokenizer(models.BPE())
        backend.normalizer = normalizers.Prepend(" ")  # pyright: ignore[reportAttributeAccessIssue]  stub
        backend.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]  stub
            [
                pre_tokenizers.Split(Regex(ALONE), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]  stub
            [decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer=trainer)
        return cls(backend)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read `tokenizer.json` of a checkpoint folder.

        Raises:
            ValueError: the file is missing or is no tokenizer of ours; one line.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise ValueError(f"{path}: no such file; `limosa warm-start` makes it")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a damaged file
            raise ValueError(f"{path}: not a tokenizer: {error}") from error
        return cls(backend)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into a folder, which is made if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(folder / FILE_NAME))

    @property
    def vocabulary_size(self) -> int:
        """Tokens in all, special tokens included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Encode one text; no special token is ever among the ids.

        A lone surrogate, which no UTF-8 text can hold, is encoded as `?`.
        """
        sound = text.encode("utf-8", errors="replace").decode("utf-8")
        return self._backend.encode(sound, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Give back the text of one `encode`; special tokens and unknown ids are left out."""
        return self._backend.decode(list(token_ids), skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Spell out tokens for a person, special tokens included."""
        return "".join(self.spell(token_id) for token_id in token_ids)

    def spell(self, token_id: int) -> str:
        """Spell out one token: ` gallium`, `<|end|>`; half a character becomes U+FFFD."""
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self.special_ids:
            return token or f"<|{token_id}|>"
        return decoders.ByteLevel().decode([token])
