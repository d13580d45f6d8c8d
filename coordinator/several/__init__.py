"""What several coordinators share: the models, which they fetch from each other."""
