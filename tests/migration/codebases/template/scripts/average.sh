#!/bin/sh
# Run main.py with some seeds.
for seed in 0 1 2; do python main.py; done
