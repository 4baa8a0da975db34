"""One reader per format of a publisher: files in, a checked data set out; no download, no pickle."""
