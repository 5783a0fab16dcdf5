package migrations

// Apply is what `migrate up` does with the migrations of a binary, which a test may choose.
var Apply = up
