"""The methods by name, and the shallow methods."""
