"""The strategies, one file each, and what makes their plans ready to be executed."""
