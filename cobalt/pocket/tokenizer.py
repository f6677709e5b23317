"""The seed model's tokenizer: byte-level BPE with Qwen3's chat tokens, learned from the demonstrations.

Lossless for any text: every byte is in the alphabet, nothing is normalised. `<think>` and `</think>` are tokens but not
special ones, so that decoding without special tokens keeps them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

VOCABULARY = 1536
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
THINK_TOKENS = ("<think>", "</think>")
CONTEXT = 8192
"""The longest conversation in tokens that tokenizer and model declare."""

# Whole phrases and lines of code may become one token: a conversation is then half as long as with a token a word,
# and minutes of training go twice as far. Labels, numbers and line ends stand alone, because they tell phrases apart.
_PIECES = r"\b[A-E]\b|\p{N}{1,2}|\n|(?:(?!\b[A-E]\b)[^\n\p{N}])+"


def learn_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """A `PreTrainedTokenizerFast` of at most `vocabulary` tokens, the chat template included."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, START_OF_TURN, END_OF_TURN]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary - len(THINK_TOKENS),
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.add_tokens([AddedToken(token, normalized=False, special=False) for token in THINK_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=(Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"),
    )
