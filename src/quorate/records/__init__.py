"""Rows of records, who writes them, and who reads them while a run goes on."""
