# Writes the platform of a cluster: nodes of eight GPUs that reach each other over links of their own (NVLink-like) and other
# nodes through one adapter each (InfiniBand-like), nodes meeting at one switch that is never the bottleneck.
#
#   awk -v nodes=128 -f nodes.awk > gpu-nodes.xml
#
# A GPU's flow out of its node is bound by its adapter ("per flow": a link on which flows do not share), and all flows of a
# node by the sum of its adapters. Latencies are of one link; a message inside a node crosses two, one to another node six.
BEGIN {
    print "<?xml version=\"1.0\"?>"
    print "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">"
    print "<!-- made by nodes.awk, which explains it -->"
    print "<platform version=\"4.1\">"
    print "<zone id=\"world\" routing=\"Floyd\">"
    print "  <zone id=\"core\" routing=\"Full\"><router id=\"switch\"/></zone>"
    for (i = 0; i < nodes; i++) {
        printf "  <cluster id=\"node%d\" prefix=\"n%dg\" suffix=\"\" radical=\"0-7\" speed=\"1Gf\" bw=\"450GBps\" lat=\"1us\" router_id=\"r%d\"/>\n", i, i, i
    }
    for (i = 0; i < nodes; i++) {
        printf "  <link id=\"adapters%d\" bandwidth=\"400GBps\" latency=\"0.5us\" sharing_policy=\"SPLITDUPLEX\"/>\n", i
        printf "  <link id=\"flow%d\" bandwidth=\"50GBps\" latency=\"0.5us\" sharing_policy=\"FATPIPE\"/>\n", i
    }
    for (i = 0; i < nodes; i++) {
        printf "  <zoneRoute src=\"node%d\" dst=\"core\" gw_src=\"r%d\" gw_dst=\"switch\" symmetrical=\"NO\"><link_ctn id=\"flow%d\"/><link_ctn id=\"adapters%d\" direction=\"UP\"/></zoneRoute>\n", i, i, i, i
        printf "  <zoneRoute src=\"core\" dst=\"node%d\" gw_src=\"switch\" gw_dst=\"r%d\" symmetrical=\"NO\"><link_ctn id=\"adapters%d\" direction=\"DOWN\"/><link_ctn id=\"flow%d\"/></zoneRoute>\n", i, i, i, i
    }
    print "</zone>"
    print "</platform>"
}
