"""Parameter servers, without numbers: in which order, and how much each, the gradients that workers push count."""
