"""Agreement among neighbours: what is sent along the edges of a graph, who answers, and the graphs."""
