/* `ttrain table RUN...`: accuracy, sizes and ranks of runs side by side. */
#ifndef TT_LAUNCH_TABLE_H
#define TT_LAUNCH_TABLE_H

int tt_table_main(int argc, char **argv);

#endif
