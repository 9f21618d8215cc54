"""`ingle bench`: what is measured, how it is told, what it is compared with."""
