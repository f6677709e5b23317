"""The loops over problems: single turn, multi turn, hidden-test evaluation."""
