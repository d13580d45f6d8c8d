"""What every daemon needs: settings, files, ports, logs."""
