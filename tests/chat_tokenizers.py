"""Small tokenizers with chat templates of the same form as those of models that people train; no tests.

Their words are this project's own. What counts is the form: which tokens begin a conversation and end a turn, who opens
the thinking, and what becomes of the thinking of earlier turns.
"""

from pathlib import Path

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"

FORMS = {
    # eos is the token that ends a turn; no bos.
    "qwen3": ("qwen3", {"eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}, [END_OF_TEXT, "<|im_start|>"]),
    # bos is written by the template, and added once more by a tokenizer that is asked for special tokens.
    "llama": ("r1_distill", {"bos_token": "<|begins|>", "eos_token": "<|ends|>"}, ["<|asks|>", "<|answers|>"]),
    # A base model with the template of its chat model: the token that ends a turn is neither eos nor a special token.
    # Qwen2.5 and SmolLM2: with a system message of their own.
    "chatml": ("chatml", {"eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}, [END_OF_TEXT, "<|im_start|>"]),
    "llama3": ("llama3", {"bos_token": "<|begins|>", "eos_token": "<|ends|>"}, ["<|head|>", "<|body|>"]),
    # There are no system messages, and the token that ends a turn is not the tokenizer's eos.
    "gemma": ("gemma", {"bos_token": "<|begins|>", "eos_token": "<|eos|>"}, ["<|turn|>", "<|turn_ends|>"]),
    "base": ("qwen3", {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}, ["<|im_start|>"]),
}
"""By name: template (a file of data/chat_templates), named special tokens, further special tokens."""

ARCHITECTURES = {
    "llama": ("llama3", "llama", False),
    "qwen2.5": ("chatml", "qwen2", True),
    "qwen2.5 untied": ("chatml", "qwen2", False),
    "qwen3": ("qwen3", "qwen3", True),
    "smollm2": ("chatml", "llama", True),
    "gemma's template": ("gemma", "llama", True),
}
"""By name: the form of the tokenizer, the type of the model, and whether its head is tied to its embeddings."""


def make_tokenizer(form, *, special_tags=False):
    """A lossless tokenizer, one token a byte, with the template of a form.

    Args:
        form: A key of `FORMS`.
        special_tags: Whether <think> and </think> are special tokens, which decoding may leave out.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    name, named, further = FORMS[form]
    template = (Path(__file__).parent / "data" / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*dict.fromkeys([*named.values(), *further])])
    core.add_tokens([AddedToken(tag, normalized=False, special=special_tags) for tag in ("<think>", "</think>")])
    if END_OF_TURN in template and core.token_to_id(END_OF_TURN) is None:
        core.add_tokens([AddedToken(END_OF_TURN, normalized=False, special=False)])
    if bos := named.get("bos_token"):
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=template, clean_up_tokenization_spaces=False, **named
    )


def save_policy(folder, form, *, generation=None, kind=None, tied=False, **options):
    """A folder with a tokenizer of a form and the configuration of a small model for it; its file of weights is empty.

    Args:
        folder: Where to; must be there.
        form: A key of `FORMS`.
        generation: Tokens at which the model's generation_config.json ends a response; None: no such file.
        kind: The type of the model; None: Llama or Qwen3, by the form.
        tied: Whether its head is tied to its embeddings.
        options: Of `make_tokenizer`.
    """
    from transformers import AutoConfig, GenerationConfig

    tokenizer = make_tokenizer(form, **options)
    tokenizer.save_pretrained(folder)
    kind = kind or ("llama" if tokenizer.bos_token else "qwen3")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1} | ({} if kind == "qwen2" else {"head_dim": 32})
    AutoConfig.for_model(
        kind,
        architectures=[f"{kind.capitalize()}ForCausalLM"],
        vocab_size=len(tokenizer),
        max_position_embeddings=2**15,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **heads,
    ).save_pretrained(folder)
    (folder / "model.safetensors").touch()
    if generation is not None:
        ids = tokenizer.convert_tokens_to_ids(list(generation))
        GenerationConfig(eos_token_id=ids).save_pretrained(folder)
    return str(folder)


def save_architecture(folder, name):
    """`save_policy` for a key of `ARCHITECTURES`."""
    form, kind, tied = ARCHITECTURES[name]
    generation = ["<|eos|>", "<|turn_ends|>"] if form == "gemma" else None
    return save_policy(folder, form, generation=generation, kind=kind, tied=tied)
