"""Problem sets in the TACO-Cobalt schema: where they come from and how they are made."""
