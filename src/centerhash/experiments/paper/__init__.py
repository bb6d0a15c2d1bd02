"""The paper's tables and figures, each made by one module from the user's own data."""
