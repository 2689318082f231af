"""What the analysis does for every frame: compiled, plain typed Python without pyarrow.

`Watch` feeds an observer and follows its rows; `Timeline` and `Stalls` measure what passes;
`StreamColumns` turns streams into columns, `SharedPage` takes the rows of short sessions together.
The packages above make Arrow tables of their columns.
"""
