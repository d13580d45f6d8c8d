"""What all interfaces share: access, bodies and their limits, pictures, errors."""
