"""In-context reward hacking: events in perturbed runs, and an LLM judge's categories for them."""
