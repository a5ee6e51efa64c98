/* The project's own reference files: small ones in the layout of the large, with results from the
 * double-precision models, so that nothing goes untested where the large ones are not at hand. */
#ifndef TT_TESTS_OWN_REFERENCE_H
#define TT_TESTS_OWN_REFERENCE_H

#include "core/error.h"

enum { TT_OWN_REFERENCE_FILES = 5 };

/* Their names. */
extern const char *const tt_own_reference_names[TT_OWN_REFERENCE_FILES];

/* Writes all of them into `folder`. Inputs are the same bits on every machine; results may differ
 * in the last bits, with the mathematics library and the compiler. */
tt_status tt_own_reference_write(const char *folder, tt_error *error);

#endif
