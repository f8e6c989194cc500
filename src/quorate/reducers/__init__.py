"""By which protocol one sum is formed among given members. A reducer knows neither when nor who."""
