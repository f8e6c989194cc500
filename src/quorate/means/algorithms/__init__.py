"""All-reduce as messages from worker to worker: who sends which pieces of the vector to whom, step by step."""
