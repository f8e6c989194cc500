"""Charts as SVG text: pure functions of numbers and a width, which colours, patterns and fonts of the page dress."""
