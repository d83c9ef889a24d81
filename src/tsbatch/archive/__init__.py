"""Model archives: select their files, write them in every format, read them back and verify them."""
