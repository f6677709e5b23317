"""Groups of judged programs for offline training: selection, writing, and the sources besides CodeNet."""
