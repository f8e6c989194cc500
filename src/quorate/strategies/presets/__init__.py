"""Other defaults of a strategy, under a name and with a card of their own: classes of nothing but fields."""
