"""What many workers would do: times alone, by events, with the decisions of real rounds; or with real gradients."""
