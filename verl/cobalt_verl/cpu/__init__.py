"""veRL on a machine without a GPU: a platform named "cpu", and what veRL and vLLM need besides.

`install` is called in every process of veRL with `VERL_PLATFORM=cpu`, and in no other.
"""


def install() -> None:
    """Register the platform, give vLLM's CPU build the name that veRL asks for, and change two functions of torch."""
    from cobalt_verl.cpu import patches, platform, vllm_name  # noqa: F401  # importing `platform` registers it

    vllm_name.install()
    patches.install()
