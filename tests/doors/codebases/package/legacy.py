import poptorch  # an attempt of years ago, which nothing imports

options = poptorch.Options()
