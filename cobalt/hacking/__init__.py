"""In-context reward hacking: events in perturbed runs, and an LLM classifier's categories for them."""
