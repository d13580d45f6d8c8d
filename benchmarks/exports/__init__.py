"""Networks that people run today, as public packages export them."""
