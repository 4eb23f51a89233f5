"""What one host decides: its worker processes, its slots under horovodrun, host discovery."""
