"""Rows, trees and raw reads of tensors, wrapped ones, too."""
