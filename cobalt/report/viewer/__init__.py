"""The trajectory viewer: one self-contained HTML file from an evaluated run."""
