/* Text of a report's page: what came from files is escaped, numbers are written for people.
 * Inside launch/report*.c only. */
#ifndef TT_LAUNCH_REPORT_TEXT_H
#define TT_LAUNCH_REPORT_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TT_REPORT_NUMBER = 48 }; /* bytes of a number's text */

/* Writes text so that it is itself between tags and inside quotes, in HTML and in XML. Bytes that
 * are no UTF-8 and characters that XML does not have become U+FFFD. */
void tt_report_escape(FILE *out, const char *text);
void tt_report_escape_bytes(FILE *out, const char *text, size_t size);

/* Each fills `text` and returns it; what is not finite becomes a dash. */

/* 1,234,567 */
const char *tt_report_integer(double value, char text[TT_REPORT_NUMBER]);
/* Four significant digits: 3.613, 0.00015, 1.25e-09; all before the point, with commas: 12,346. */
const char *tt_report_real(double value, char text[TT_REPORT_NUMBER]);
/* 48 s, 12 min 05 s, 3 h 10 min, 2 d 04 h */
const char *tt_report_duration(double seconds, char text[TT_REPORT_NUMBER]);
/* "41.7 MB", powers of 1000 */
const char *tt_report_bytes(double bytes, char text[TT_REPORT_NUMBER]);

#endif
