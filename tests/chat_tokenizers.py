"""Small tokenizers with chat templates of the same form as those of the paper's two models; no tests.

Their words are this project's own. What counts is the form: which tokens begin a conversation and end a turn, who opens
the thinking, and what becomes of the thinking of earlier turns.
"""

QWEN3_FORM = """
{%- for message in messages %}
    {%- set text = message.content %}
    {%- if message.role == "assistant" and "</think>" in text %}
        {%- set text = text.split("</think>")[-1].lstrip("\n") %}
    {%- endif %}
    {%- if message.role == "assistant" and loop.last %}{% set text = "<think>\n\n</think>\n\n" ~ text %}{% endif %}
    {{- "<|im_start|>" ~ message.role ~ "\n" ~ text ~ "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ "<think>\n\n</think>\n\n" }}{% endif %}
{%- endif %}
"""

R1_DISTILL_FORM = """
{{- bos_token }}
{%- for message in messages if message.role == "system" %}{{ message.content }}{% endfor %}
{%- for message in messages if message.role != "system" %}
    {%- if message.role == "user" %}{{ "<|asks|>" ~ message.content }}
    {%- else %}{{ "<|answers|>" ~ message.content.split("</think>")[-1] ~ eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|answers|><think>\n" }}{% endif %}
"""

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"

FORMS = {
    # eos is the token that ends a turn; no bos.
    "qwen3": (QWEN3_FORM, {"eos_token": END_OF_TURN, "pad_token": END_OF_TEXT}, [END_OF_TEXT, "<|im_start|>"]),
    # bos is written by the template, and added once more by a tokenizer that is asked for special tokens.
    "llama": (R1_DISTILL_FORM, {"bos_token": "<|begins|>", "eos_token": "<|ends|>"}, ["<|asks|>", "<|answers|>"]),
    # A base model with the template of its chat model: the token that ends a turn is neither eos nor a special token.
    "base": (QWEN3_FORM, {"eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT}, ["<|im_start|>"]),
}
"""By name: template, named special tokens, further special tokens."""


def make_tokenizer(form, *, special_tags=False):
    """A lossless tokenizer, one token a byte, with the template of a form.

    Args:
        form: A key of `FORMS`.
        special_tags: Whether <think> and </think> are special tokens, which decoding may leave out.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    template, named, further = FORMS[form]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
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


def save_policy(folder, form, *, generation=None, **options):
    """A folder with a tokenizer of a form and the configuration of a model for it, without weights.

    Args:
        folder: Where to; must be there.
        form: A key of `FORMS`.
        generation: Tokens at which the model's generation_config.json ends a response; None: no such file.
        options: Of `make_tokenizer`.
    """
    from transformers import GenerationConfig, LlamaConfig, Qwen3Config

    tokenizer = make_tokenizer(form, **options)
    tokenizer.save_pretrained(folder)
    kind = LlamaConfig if form == "llama" else Qwen3Config
    kind(
        vocab_size=len(tokenizer),
        max_position_embeddings=2**15,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    if generation is not None:
        ids = tokenizer.convert_tokens_to_ids(list(generation))
        GenerationConfig(eos_token_id=ids).save_pretrained(folder)
    return str(folder)
