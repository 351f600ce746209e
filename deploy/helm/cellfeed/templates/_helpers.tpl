{{- define "cellfeed.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "cellfeed.labels" -}}
app.kubernetes.io/name: cellfeed
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cellfeed.allLabels" -}}
{{ include "cellfeed.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "cellfeed.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "cellfeed.configSecret" -}}
{{ .Values.existingConfigSecret | default (printf "%s-config" (include "cellfeed.fullname" .)) }}
{{- end }}

{{/* The configuration file: the user's part, and the workers and gateways of this chart. */}}
{{- define "cellfeed.config" -}}
{{- $full := include "cellfeed.fullname" . }}
{{- $tls := dict "certificate" "/etc/cellfeed/tls/tls.crt" "key" "/etc/cellfeed/tls/tls.key" }}
{{- $gateways := list }}
{{- range $index := until (int .Values.gateway.replicas) }}
{{- $name := printf "%s-gateway-%d" $full $index }}
{{- $host := $.Values.gateway.advertisedHost | default (printf "%s.%s-gateway.%s.svc" $name $full $.Release.Namespace) | replace "{index}" (toString $index) }}
{{- $listener := merge (dict "name" "public" "bind" "0.0.0.0" "port" (int $.Values.gateway.port) "advertised" (printf "%s:%d" $host (int $.Values.gateway.port)) "security" "sasl_tls") $tls }}
{{- $gateways = append $gateways (dict "name" $name "listeners" (list $listener)) }}
{{- end }}
{{- $worker := dict "name" "worker" "host" "0.0.0.0" "port" (int .Values.worker.port) "tls" $tls }}
{{- toYaml (merge (dict "workers" (list $worker) "gateways" $gateways) (deepCopy .Values.config)) }}
{{- end }}

{{- define "cellfeed.podSpec" -}}
{{- $root := .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "cellfeed.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end }}
containers:
  - name: cellfeed
    image: {{ include "cellfeed.image" $root }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args: {{ toJson .args }}
    env:
      - name: POD_NAME
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    ports:
      - {name: health, containerPort: 8090}
      {{- with .port }}
      - {name: serves, containerPort: {{ . }}}
      {{- end }}
    {{- if not .isJob }}
    # A start may wait for its servers: only a process that is not alive is ended.
    startupProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 2
      failureThreshold: 90
    livenessProbe:
      httpGet: {path: /livez, port: health}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: health}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 2
    {{- end }}
    resources: {{ toYaml .resources | nindent 6 }}
    volumeMounts:
      - {name: run, mountPath: /srv/cellfeed}
      - {name: tmp, mountPath: /tmp}
      - {name: config, mountPath: /srv/cellfeed/config.yaml, subPath: config.yaml, readOnly: true}
      - {name: tls, mountPath: /etc/cellfeed/tls, readOnly: true}
      {{- if .blocks }}
      - {name: blocks, mountPath: /srv/cellfeed/blocks}
      {{- end }}
volumes:
  - {name: run, emptyDir: {}}
  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
  - name: config
    secret: {secretName: {{ include "cellfeed.configSecret" $root }}, defaultMode: 0440}
  - name: tls
    secret: {secretName: {{ required "tls.secretName: workers and gateways need a certificate" $root.Values.tls.secretName }}, defaultMode: 0440}
{{- end }}

{{- define "cellfeed.podMetadata" -}}
labels:
  {{- include "cellfeed.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
  {{- with .process }}
  cellfeed/process: {{ . }}
  {{- end }}
annotations:
  checksum/config: {{ include "cellfeed.config" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
