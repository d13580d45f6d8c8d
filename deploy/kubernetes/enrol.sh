#!/bin/sh
# Lets every node that waits for it join the cluster: one token each, good once and for ten minutes,
# never in a command line. Run it after `kubectl apply`, and whenever a node has been added.
set -eu
namespace=${1:-imbrex}
kubectl="kubectl --namespace $namespace"
address=$($kubectl get pods --selector app.kubernetes.io/component=coordinator \
  --output 'jsonpath={.items[0].status.hostIP}')
$kubectl get pods --selector app.kubernetes.io/component=worker --output \
  'jsonpath={range .items[?(@.status.initContainerStatuses[1].state.running)]}{.metadata.name}{"\n"}{end}' |
while read -r pod; do
  $kubectl exec deployment/imbrex-coordinator --container coordinator -- \
    imbrex cluster invite --config /etc/imbrex/coordinator.toml --address "$address" --minutes 10 </dev/null 2>/dev/null |
  $kubectl exec --stdin "$pod" --container join -- \
    imbrex worker --config /etc/imbrex/worker.toml --join - --join-only
  echo "$pod has joined"
done
