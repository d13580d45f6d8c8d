"""What every surface shares: who may ask, bodies and their bounds, pictures, errors."""
