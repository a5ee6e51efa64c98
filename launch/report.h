/* `ttrain report`: one HTML page about one run or several. */
#ifndef TT_LAUNCH_REPORT_H
#define TT_LAUNCH_REPORT_H

/* The command; argv[0] is "report". Returns an exit status. */
int tt_report_main(int argc, char **argv);

#endif
