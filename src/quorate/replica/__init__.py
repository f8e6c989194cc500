"""One model and its optimizer as numbers; knows no other worker."""
