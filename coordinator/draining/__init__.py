"""Taking devices out of use, and back, without a request noticing."""
