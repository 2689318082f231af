"""The compiled part of reading captures: everything here touches each packet or each piece.

Typed Python that mypyc compiles and that runs the same interpreted. No files are opened here;
input comes as `bytes` windows, output goes to preallocated columns.
"""
